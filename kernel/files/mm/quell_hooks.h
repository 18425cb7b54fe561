/* SPDX-License-Identifier: GPL-2.0-only */
/* The hooks of the mechanisms of CONFIG_QUELL in mm/, for mm/internal.h. */
#include "folio_order.h"
#include "luf.h"
#include "luf_debug.h"
#include "rmap_batch.h"
#include "writeout_batch.h"
