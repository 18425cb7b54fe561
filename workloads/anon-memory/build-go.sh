#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# build-go.sh SOURCE PACKAGES OUT - compile a Go program to OUT
#
# PACKAGES is where Debian's packages lie unpacked; else the installed Go is used.
set -eu

go=$2/usr/bin/go
if [ -x "$go" ]; then
	GOROOT=$(realpath "$2/usr/lib/go")
	export GOROOT
else
	go=go
fi
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
GO111MODULE=off CGO_ENABLED=0 GOCACHE=$cache "$go" build -o "$3" "$1"
