from howsmooth.training.monitor import Monitor as Monitor
from howsmooth.training.trainer import TrainerMonitor as TrainerMonitor
from howsmooth.training.lightning import LightningMonitor as LightningMonitor
