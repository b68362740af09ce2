#!/bin/sh
# Runs `resispec`; flags alone are those of `resispec serve`. A command that is not one of its own is run as it is.
# Settings come from RESISPEC_* variables; an empty one counts as not set, so that a .env file can list all.
set -eu

for name in $(env | sed -n 's/^\(RESISPEC_[A-Z_]*\)=$/\1/p'); do
    unset "$name"
done

case "${1-}" in
    '' | -*) set -- resispec serve "$@" ;;
    serve | prepare | distill | bench | version) set -- resispec "$@" ;;
esac

cache="${RESISPEC_CACHE:-/var/cache/resispec}"
if [ "$1" = resispec ] && ! [ -w "$cache" ]; then
    echo "resispec: user $(id -u) cannot write to $cache, where models are kept; mount a volume there that it" \
        "owns (docker run -v resispec:$cache), or chown the folder that is mounted" >&2
    exit 2
fi

# Not a child: signals reach the server itself, and its exit code is the container's.
exec "$@"
