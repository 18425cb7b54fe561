# SPDX-License-Identifier: GPL-2.0-only
# A snapshot by fork() while everything is overwritten. The server is redis-check-rdb under another
# name: the server's package would start it on the host.
rm -f snapshot now
truncate -s 0 swap; fallocate -l 128M swap; chmod 600 swap; mkswap swap >/dev/null; swapon swap
ln -s "$(command -v redis-check-rdb)" redis-server
cli() { redis-cli -s /run/work/redis "$@"; }
serve() {
	./redis-server --port 0 --unixsocket /run/work/redis --save '' --appendonly no --dir . >/run/work/log 2>&1 &
	server=$!
	until [ "$(cli ping 2>&1)" = PONG ]; do
		kill -0 $server || { cat /run/work/log; echo 'not ok the server ended'; exit 1; }
		sleep 0.3
	done
}
content() { cli --raw < get | sha256sum | cut -d' ' -f1; }
serve
cli --pipe < load | grep -q 'errors: 0' || echo 'not ok loading'
cli bgsave >/dev/null
cli --pipe < change | grep -q 'errors: 0' || echo 'not ok changing'
while cli info persistence | grep -q bgsave_in_progress:1; do sleep 0.5; done
cli info persistence | grep -q last_bgsave_status:ok || echo 'not ok the snapshot'
echo "result now $(content)"
cli shutdown nosave; wait $server
serve
echo "result snapshot $(content)"
cli shutdown nosave
