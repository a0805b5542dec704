from howsmooth.explorer.page import explorer as explorer, launch as launch, wait as wait
from howsmooth.explorer.limits import Limits as Limits
