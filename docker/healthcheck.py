"""Exit with 0 if the server in this container accepts work. Standard library only."""

import os
import sys
import urllib.error
import urllib.request

TIMEOUT = 4  # seconds


def main() -> int:
    url = f"http://127.0.0.1:{os.environ.get('RESISPEC_PORT', '8000')}/ready"
    try:
        # A proxy meant for the outside must not be asked for what is inside.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=TIMEOUT) as response:
            return 0 if response.status == 200 else 1
    except (urllib.error.URLError, OSError) as error:
        print(f"{url}: {error}", file=sys.stderr)  # noqa: T201 - shown by docker inspect
        return 1


if __name__ == "__main__":
    sys.exit(main())
