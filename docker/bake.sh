#!/bin/sh
# Fetches models into the image's cache: `default`, or hub ids. Nothing for none.
set -eu

for model in "$@"; do
    case "$model" in
        default) resispec prepare ;;
        *) hf download "$model" ;;
    esac
done
