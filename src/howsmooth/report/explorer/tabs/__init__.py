"""The tabs of the explorer, one file each: fields, what they compute, where it is shown."""
