"""Where the apps are mounted; apart, so that clients need not import the server."""

MOUNT_PATH = "/v1/hoodie"
PAGES_PATH = "/lake"
