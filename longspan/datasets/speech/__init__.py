"""The parts of the speech data: layouts, phonemes, alignments, pitch, energy, arrays; see `datasets.ljspeech`."""
