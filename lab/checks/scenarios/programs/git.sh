# SPDX-License-Identifier: GPL-2.0-only
# A repository of loose objects is packed.
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_OPTIONAL_LOCKS=0
cd repo; chown -R root:root .
git -c pack.threads=2 -c pack.windowMemory=24m -c gc.writeCommitGraph=true gc -q --prune=now || echo 'not ok git gc'
git fsck --full --strict >/run/work/fsck 2>&1 || { cat /run/work/fsck; echo 'not ok git fsck'; }
rm -rf mm lib kernel
git checkout -q . || echo 'not ok git checkout'
echo "result head $(git rev-parse HEAD)"
echo "result files $(git ls-files -s | sha256sum | cut -d' ' -f1)"
# New times make git status read each file again.
sleep 1; git ls-files | xargs -d '\n' touch
echo "result status $(git status --porcelain | wc -l)"
echo "result loose $(git count-objects | cut -d' ' -f1)"
