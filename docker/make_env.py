"""Write docker/.env for a trial: .env.example with a generated value for each secret. An .env that exists stays.

`python3 docker/make_env.py`, or `make compose-env`. Standard library only.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
SETTINGS = "# --- settings"
"""The line of .env.example behind which values may be empty."""


def fill_in(example: str) -> str:
    """Return the text of .env.example with a new secret for each empty value of its first part."""
    before, heading, after = example.partition(SETTINGS)
    filled = re.sub(r"^(\w+)=$", lambda match: f"{match[1]}={_new_secret(match[1])}", before, flags=re.MULTILINE)
    return filled + heading + after


def _new_secret(name: str) -> str:
    if name == "FERNET_KEY":
        return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    return secrets.token_hex(10 if name == "ADMIN_PASSWORD" else 32)


def main(folder: Path = FOLDER) -> None:
    """Write the file, for this user alone."""
    path = folder / ".env"
    text = fill_in((folder / ".env.example").read_text(encoding="utf-8"))
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        print(f"{path} is there already, and stays as it is")
        return
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    print(f"{path} has generated secrets; the password of Airflow's first user is its ADMIN_PASSWORD")


if __name__ == "__main__":
    sys.exit(main())
