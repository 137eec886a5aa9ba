"""Text at 1,000 bytes: is a film review positive? (Long Range Arena, arXiv:2011.04006)"""

from longspan.tasks.byte_text import ByteText, protocols
from longspan.tasks.classification import encoder_task


class Text1K(ByteText):
    meta = encoder_task("Text 1K")
    protocols = protocols("text_1k")
