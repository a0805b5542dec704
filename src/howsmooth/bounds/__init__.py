"""Bounds on the Lipschitz constants of attention, one file per source, one function per statement."""

from howsmooth.bounds.bound import Bound, Refused
from howsmooth.bounds.form import LayerForm

__all__ = ["Bound", "LayerForm", "Refused"]
