"""Kernels on a CPU, by Triton's interpreter; `conftest` tells Triton."""

import torch

from noisewise.persample import kernels


def interpret(monkeypatch):
    """Use kernels wherever there are any.

    Triton 3.6 counts loops by arrays of one entry, which NumPy 2.4 does not take for numbers, and cuts float32 to bfloat16
    where a GPU rounds to the nearest.
    """
    from triton.runtime import interpreter

    monkeypatch.setattr(kernels, "INTERPRETED", True)
    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
    convert = interpreter._convert_float

    def converted(numbers, given, wanted, mode):
        if (given.name, wanted.name) != ("fp32", "bf16"):
            return convert(numbers, given, wanted, mode)
        return torch.tensor(numbers).bfloat16().view(torch.uint16).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", converted)
