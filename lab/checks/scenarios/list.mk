# SPDX-License-Identifier: GPL-2.0-only
# Lists the objects that Kbuild compiles in $(dir), one a line; folders end with a slash. Kbuild also
# compiles an object that is not configured, if its name is given.
include include/config/auto.conf
include $(srctree)/scripts/Kbuild.include
# mm/Makefile.quell asks for the version.
release := $(subst ., ,$(file < include/config/kernel.release))
VERSION := $(word 1,$(release))
PATCHLEVEL := $(word 2,$(release))
obj := $(dir)
src := $(srctree)/$(dir)
include $(firstword $(wildcard $(src)/Kbuild) $(src)/Makefile)
quell-names := $(obj-y) $(obj-m) $(lib-y) $(lib-m)
quell-parts = $(strip $($(1:.o=-y)) $($(1:.o=-m)) $($(1:.o=-objs)))
.PHONY: quell-list
quell-list:
	@printf '%s\n' $(foreach name,$(quell-names),$(or $(call quell-parts,$(name)),$(name)))
