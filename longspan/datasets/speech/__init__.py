"""The parts of the speech data: phonemes, alignments, pitch, energy, and how clips are read; see `datasets.ljspeech`."""
