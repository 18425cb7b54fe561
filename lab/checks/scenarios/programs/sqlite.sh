# SPDX-License-Identifier: GPL-2.0-only
# A mapped database, read by two while a third writes.
P='PRAGMA mmap_size=1073741824; PRAGMA busy_timeout=600000; PRAGMA cache_size=-2000;'
ask() { sqlite3 -batch -noheader db "$P $1" | tail -n 1; }
SUMS='SELECT count(*), sum(k), sum(length(v)) FROM t'
reader() {
	while [ ! -e /run/work/written ]; do
		[ "$(ask 'SELECT count(*) FROM t WHERE length(v) NOT IN (5, LENGTH)')" = 0 ] || echo 'not ok a reader'
	done
}
reader & one=$!
reader & two=$!
for part in 0 1 2 3; do
	ask "UPDATE t SET v = 'short' WHERE id % 3 = 0 AND id / 3 % 4 = $part" >/dev/null
done
touch /run/work/written; wait $one $two
echo "result integrity $(ask 'PRAGMA integrity_check')"
echo "result rows $(ask "$SUMS")"
echo "result written $(ask "SELECT count(*), sum(k) FROM t INDEXED BY tk WHERE k >= 0 AND v = 'short'")"
