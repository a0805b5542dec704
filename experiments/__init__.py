"""Questions of this project's own: scripts over the public API of howsmooth. They are not part of the package."""
