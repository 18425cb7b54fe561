# SPDX-License-Identifier: GPL-2.0-only
# Ends follow each output: of a command, of one process, its stacks, of single events, of no command.
cd /
export PYTHONPATH=LAB
top() { PYTHON -P -m quell top "$@" 2>/dev/null; echo end $?; }
top --json -- TOUCH
THREADS >/dev/null & sleep 1
top --json --once --pid $!
top --folded --once --pid $!
top --json --once --source events
kill $!
top -- nosuchcmd
mkdir -p /tmp/t && mount -t tracefs t /tmp/t && echo left: $(ls /tmp/t/instances) $(cat /tmp/t/events/enable)
