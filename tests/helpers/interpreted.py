"""Kernels on a CPU, by Triton's interpreter; `conftest` tells Triton."""

from noisewise.persample import kernels


def interpret(monkeypatch):
    """Use kernels wherever there are any.

    Triton 3.6 counts loops by arrays of one entry, which NumPy 2.4 does not take for numbers.
    """
    from triton.runtime import interpreter

    monkeypatch.setattr(kernels, "INTERPRETED", True)
    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
