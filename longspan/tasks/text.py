"""Text: is a film review positive? Bytes in, one of two answers out (Long Range Arena, arXiv:2011.04006).

The paper's text fixes 4,000 bytes, the released configuration has 1,000; `text_1k` to `text_4k` fix the length instead.
The published column is the best of 1,000 to 4,000 bytes for each model.
"""

from longspan.datasets import imdb
from longspan.tasks import strong
from longspan.tasks.byte_text import ByteText, protocols
from longspan.tasks.classification import encoder_task


class Text(ByteText):
    meta = encoder_task("Text")
    protocols = protocols("text") | strong.tiers(strong.TEXT, imdb.PRESETS["text"])
    presets = {**ByteText.presets, "strong": strong.TEXT_MODELS}
