"""Text at 3,000 bytes: is a film review kind? (Long Range Arena, arXiv:2011.04006)"""

from longspan.tasks.byte_text import ByteText, protocols
from longspan.tasks.classification import encoder_task


class Text3K(ByteText):
    meta = encoder_task("Text 3K")
    protocols = protocols(longspan=3_000, paper=3_000, released=3_000)
