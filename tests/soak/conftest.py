"""Settings of the soak in small."""

import torch

# Toy models are too small to share: on a busy machine, threads would wait for each other most of the time.
torch.set_num_threads(1)
