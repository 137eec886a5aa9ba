"""One thread: the networks here are small, and a second thread costs more than it gains."""

import torch

torch.set_num_threads(1)
