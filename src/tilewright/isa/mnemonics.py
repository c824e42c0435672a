"""The first words of all instructions of the PTX ISA (chapter 9.7), declared here or not.

Imports nothing. An instruction that PTX has and this package has not is refused as what is not
supported, not as a misspelling.
"""

from __future__ import annotations

_CHAPTERS = {
    "integer": """add sub mul mad mul24 mad24 sad div rem abs neg min max popc clz bfind fns brev
        bfe bfi bmsk szext dp4a dp2a addc subc madc clmad""",
    "floating point": "testp copysign fma rcp sqrt rsqrt sin cos lg2 ex2 tanh",
    "comparison": "set setp selp slct",
    "logic": "and or xor not cnot lop3 shf shl shr",
    "data movement": """mov shfl prmt ld ldu st multimem prefetch prefetchu applypriority discard
        createpolicy isspacep cvta cvt mapa getctarank cp tensormap""",
    "texture": "tex tld4 txq istypep suld sust sured suq",
    "control flow": "bra brx call ret exit",
    "synchronisation": """bar barrier membar fence atom red vote match activemask redux
        griddepcontrol elect mbarrier clusterlaunchcontrol""",
    "matrix": "wmma mma ldmatrix stmatrix movmatrix wgmma tcgen05",
    "stack": "stacksave stackrestore alloca",
    "video": """vadd vsub vabsdiff vmin vmax vshl vshr vmad vset vadd2 vsub2 vavrg2 vabsdiff2
        vmin2 vmax2 vset2 vadd4 vsub4 vavrg4 vabsdiff4 vmin4 vmax4 vset4""",
    "miscellaneous": "brkpt nanosleep pmevent trap setmaxnreg",
}
WORDS = frozenset(word for words in _CHAPTERS.values() for word in words.split())
