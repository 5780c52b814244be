"""Steps of fixed shapes equal ordinary ones; on a CPU they are plain calls on padded micro-batches."""

from helpers import tiny
import torch
from noisewise import Runtime

