# SPDX-License-Identifier: GPL-2.0-only
# WORK in Debian's kernel, which lacks the counters of flush requests (CONFIG_DEBUG_TLBFLUSH). Each
# request is one event with reason 4, TLB_REMOTE_SEND_IPI.
cd /sys/kernel/tracing/events/tlb/tlb_flush && echo hist:keys=reason > trigger || exit
WORK; code=$?
cat hist
exit $code
