# SPDX-License-Identifier: GPL-2.0-only
# Money is neither made nor lost.
[ -e pg/PG_VERSION ] || { cat /run/work/initdb; echo 'not ok initdb'; exit 1; }
$as touch /run/work/pglog
control() {
	$as bin/pg_ctl -s -w -t 300 -D pg -l /run/work/pglog \
		-o '-k /run/work -c listen_addresses= -c shared_buffers=12MB -c max_wal_size=64MB' "$@" ||
		{ cat /run/work/pglog; echo "not ok pg_ctl $*"; exit 1; }
}
ask() { bin/psql -h /run/work -U postgres -AtXq -c "$1" postgres; }
control start
bin/pgbench -h /run/work -U postgres -i -q -s SCALE postgres >/run/work/init 2>&1 || { cat /run/work/init; echo 'not ok pgbench -i'; }
bin/pgbench -h /run/work -U postgres -c CLIENTS -j 2 -t TRANSACTIONS postgres >/run/work/bench 2>&1 ||
	{ cat /run/work/bench; echo 'not ok pgbench'; }
# Like a power cut: the log must restore everything.
control -m immediate stop
control start
echo "result balances $(ask 'SELECT a = b, a = t, a = h FROM
	(SELECT sum(abalance) a FROM pgbench_accounts) q1, (SELECT sum(bbalance) b FROM pgbench_branches) q2,
	(SELECT sum(tbalance) t FROM pgbench_tellers) q3, (SELECT sum(delta) h FROM pgbench_history) q4')"
echo "result history $(ask 'SELECT count(*) FROM pgbench_history')"
echo "result accounts $(ask 'SELECT count(*) FROM pgbench_accounts')"
ask 'CREATE EXTENSION amcheck'
echo "result indexes $(ask "SELECT count(bt_index_parent_check(oid, true)) FROM pg_class
	WHERE relname LIKE 'pgbench%pkey'")"
control -m fast stop
$as bin/pg_checksums -c -D pg >/run/work/sums 2>&1 || { cat /run/work/sums; echo 'not ok pg_checksums'; }
