"""Where the app is mounted; apart, so that clients need not import the server."""

MOUNT_PATH = "/v1/hoodie"
