/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * KUnit tests of early acknowledgment: targets receive the argument that was sent, and no access
 * to user memory succeeds in an ack-to-flush window.
 */
#include <kunit/test.h>
#include <linux/gfp.h>
#include <linux/mman.h>
#include <linux/stacktrace.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#define EARLY_ACK_TEXT	"text"

/* The argument of a call. */
struct early_ack_sample {
	u64 words[EARLY_ACK_INFO_SIZE / sizeof(u64)];
};

static atomic_t early_ack_right, early_ack_wrong, early_ack_asked;

static void early_ack_look(void *info)
{
	const struct early_ack_sample *sample = info;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(sample->words); i++)
		if (sample->words[i] != sample->words[0] + i)
			atomic_inc(&early_ack_wrong);
	/* 1, if it is the argument that was sent. */
	atomic_add(sample->words[0], &early_ack_right);
}

static bool early_ack_ask(int cpu, void *info)
{
	atomic_inc(&early_ack_asked);
	return true;
}

/* Each CPU gets the argument that was sent, although the initiator overwrites it early. */
static void early_ack_call_test(struct kunit *test)
{
	const int rounds = 100, cpus = num_online_cpus();
	struct early_ack_sample sample;
	int i, j, patience = 10000;

	atomic_set(&early_ack_right, 0);
	atomic_set(&early_ack_wrong, 0);
	atomic_set(&early_ack_asked, 0);
	for (i = 0; i < 2 * rounds; i++) {
		for (j = 0; j < ARRAY_SIZE(sample.words); j++)
			sample.words[j] = 1 + j;
		early_ack_call(i % 2 ? early_ack_ask : NULL, early_ack_look, &sample, i < rounds,
			       cpu_online_mask);
		memset(&sample, 0xff, sizeof(sample));
	}
	/* The last calls that were acknowledged may be about to run. */
	while (atomic_read(&early_ack_right) < 2 * rounds * cpus && --patience)
		cpu_relax();
	KUNIT_EXPECT_EQ(test, atomic_read(&early_ack_right), 2 * rounds * cpus);
	KUNIT_EXPECT_EQ(test, atomic_read(&early_ack_wrong), 0);
	KUNIT_EXPECT_EQ(test, atomic_read(&early_ack_asked), rounds * cpus);
}

struct early_ack_mapped {
	const unsigned long *word;
	unsigned long expected;
};

static void early_ack_read(void *info)
{
	const struct early_ack_mapped *mapped = info;

	if (READ_ONCE(*mapped->word) != mapped->expected)
		atomic_inc(&early_ack_wrong);
}

/* After flush_tlb_kernel_range() no CPU reads kernel memory through the old entry. */
static void early_ack_kernel_test(struct kunit *test)
{
	void *memory = (void *)__get_free_pages(GFP_KERNEL, 1);
	struct early_ack_mapped mapped;
	struct page *page;
	unsigned int level;
	void *address;
	pte_t *pte;
	int i;

	KUNIT_ASSERT_NOT_NULL(test, memory);
	for (i = 0; i < 2; i++)
		*(unsigned long *)(memory + i * PAGE_SIZE) = i;
	page = virt_to_page(memory);
	address = vmap(&page, 1, VM_MAP, PAGE_KERNEL);
	if (address) {
		atomic_set(&early_ack_wrong, 0);
		mapped.word = address;
		pte = lookup_address((unsigned long)address, &level);
		for (i = 0; i < 100; i++) {
			mapped.expected = i % 2;
			on_each_cpu(early_ack_read, &mapped, 1);
			page = virt_to_page(memory + (i + 1) % 2 * PAGE_SIZE);
			set_pte(pte, mk_pte(page, PAGE_KERNEL));
			flush_tlb_kernel_range((unsigned long)address,
					       (unsigned long)address + PAGE_SIZE);
		}
		vunmap(address);
		KUNIT_EXPECT_EQ(test, atomic_read(&early_ack_wrong), 0);
	} else {
		KUNIT_FAIL(test, "no address for a page");
	}
	free_pages((unsigned long)memory, 1);
}

struct early_ack_tried {
	bool okay;
	long copied;
	long written;
	long copied_nmi;
	long string;
	long length;
};

/* Try all accesses that an NMI may make; @owed: as in an ack-to-flush window? */
static void early_ack_try(char __user *text, bool owed, struct early_ack_tried *t)
{
	char buf[sizeof(EARLY_ACK_TEXT)];

	local_irq_disable();
	this_cpu_write(early_ack_owed, owed);
	t->okay = nmi_uaccess_okay();
	t->copied = copy_from_user_nofault(buf, text, sizeof(buf));
	t->written = copy_to_user_nofault(text, EARLY_ACK_TEXT, sizeof(buf));
	t->copied_nmi = copy_from_user_nmi(buf, text, sizeof(buf));
	t->string = strncpy_from_user_nofault(buf, text, sizeof(buf));
	t->length = strnlen_user_nofault(text, sizeof(buf));
	this_cpu_write(early_ack_owed, false);
	local_irq_enable();
}

static void early_ack_owed_test(struct kunit *test)
{
	const long size = sizeof(EARLY_ACK_TEXT);
	struct early_ack_tried t;
	unsigned long address;
	char __user *text;

	address = kunit_vm_mmap(test, NULL, 0, PAGE_SIZE, PROT_READ | PROT_WRITE,
				MAP_ANONYMOUS | MAP_PRIVATE, 0);
	KUNIT_ASSERT_NE(test, address, 0);
	KUNIT_ASSERT_FALSE(test, IS_ERR_VALUE(address));
	text = (char __user *)address;
	KUNIT_ASSERT_EQ(test, copy_to_user(text, EARLY_ACK_TEXT, size), 0);

	early_ack_try(text, false, &t);
	KUNIT_EXPECT_TRUE(test, t.okay);
	KUNIT_EXPECT_EQ(test, t.copied, 0);
	KUNIT_EXPECT_EQ(test, t.written, 0);
	KUNIT_EXPECT_EQ(test, t.copied_nmi, 0);
	KUNIT_EXPECT_EQ(test, t.string, size);
	KUNIT_EXPECT_EQ(test, t.length, size);

	early_ack_try(text, true, &t);
	KUNIT_EXPECT_FALSE(test, t.okay);
	KUNIT_EXPECT_EQ(test, t.copied, -EFAULT);
	KUNIT_EXPECT_EQ(test, t.written, -EFAULT);
	KUNIT_EXPECT_EQ(test, t.copied_nmi, size);
	KUNIT_EXPECT_EQ(test, t.string, -EFAULT);
	KUNIT_EXPECT_EQ(test, t.length, 0);
}

/* Two frames of a user's stack, as arch_stack_walk_user() expects them. */
struct early_ack_frame {
	unsigned long next;
	unsigned long ret;
};

static bool early_ack_consume(void *cookie, unsigned long addr)
{
	unsigned long **at = cookie;

	*(*at)++ = addr;
	return true;
}

static void early_ack_walk(struct kunit *test, unsigned long stack, bool owed,
			   unsigned int expected)
{
	const struct pt_regs regs = { .ip = 1, .sp = stack, .bp = stack };
	unsigned long found[8] = { }, *at = found, i;

	local_irq_disable();
	this_cpu_write(early_ack_owed, owed);
	arch_stack_walk_user(early_ack_consume, &at, &regs);
	this_cpu_write(early_ack_owed, false);
	local_irq_enable();

	KUNIT_EXPECT_EQ(test, at - found, expected);
	for (i = 0; i < expected; i++)
		KUNIT_EXPECT_EQ(test, found[i], i + 1);
}

/* Only the first entry is in the registers. */
static void early_ack_walk_test(struct kunit *test)
{
	struct early_ack_frame frames[2] = { { .ret = 2 }, { .ret = 3 } };
	unsigned long stack;

	stack = kunit_vm_mmap(test, NULL, 0, PAGE_SIZE, PROT_READ | PROT_WRITE,
			      MAP_ANONYMOUS | MAP_PRIVATE, 0);
	KUNIT_ASSERT_NE(test, stack, 0);
	KUNIT_ASSERT_FALSE(test, IS_ERR_VALUE(stack));
	frames[0].next = stack + sizeof(frames[0]);
	KUNIT_ASSERT_EQ(test, copy_to_user((void __user *)stack, frames, sizeof(frames)),
			0);

	early_ack_walk(test, stack, false, 3);
	early_ack_walk(test, stack, true, 1);
}

/* Flushes that free page tables, or have the target change the mm, are as in stock. */
static void early_ack_possible_test(struct kunit *test)
{
	struct flush_tlb_info info = { .end = TLB_FLUSH_ALL };

	KUNIT_EXPECT_TRUE(test, early_ack_possible(&info));
	info.freed_tables = true;
	KUNIT_EXPECT_FALSE(test, early_ack_possible(&info));
	info.freed_tables = false;
	info.trim_cpumask = 1;
	KUNIT_EXPECT_FALSE(test, early_ack_possible(&info));
}

static struct kunit_case early_ack_cases[] = {
	KUNIT_CASE(early_ack_call_test),
	KUNIT_CASE(early_ack_kernel_test),
	KUNIT_CASE(early_ack_owed_test),
	KUNIT_CASE(early_ack_walk_test),
	KUNIT_CASE(early_ack_possible_test),
	{}
};

static struct kunit_suite early_ack_suite = {
	.name = "early_ack",
	.test_cases = early_ack_cases,
};

kunit_test_suite(early_ack_suite);
