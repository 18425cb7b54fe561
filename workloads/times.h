/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Percentiles of times, in buckets of an eighth of a power of two of ns. Each thread has its
 * own struct times; all are merged at the end. Include after workload.h.
 */
#ifndef QUELL_TIMES_H
#define QUELL_TIMES_H

struct times {
	uint64_t count;
	uint64_t bucket[64 * 8];
};

static inline void times_add(struct times *times, uint64_t ns)
{
	unsigned int power = 63 - (unsigned int)__builtin_clzll(ns | 8);

	times->bucket[power * 8 + (ns >> (power - 3) & 7)]++;
	times->count++;
}

static inline void times_merge(struct times *to, const struct times *from)
{
	for (unsigned int i = 0; i < ARRAY_SIZE(to->bucket); i++)
		to->bucket[i] += from->bucket[i];
	to->count += from->count;
}

/* The start of the bucket with the time that @share of all do not exceed. */
static inline double times_percentile_us(const struct times *times, double share)
{
	unsigned int i = 0;
	uint64_t seen = 0;

	for (; i < ARRAY_SIZE(times->bucket); i++) {
		seen += times->bucket[i];
		if ((double)seen >= share * (double)times->count)
			break;
	}
	return (double)((8 + (uint64_t)i % 8) << (i / 8 - 3)) / 1000;
}

#endif /* QUELL_TIMES_H */
