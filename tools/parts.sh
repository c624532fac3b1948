#!/bin/sh
# One evaluation in several processes on one GPU, then its report:
#
#     sh tools/parts.sh 14 cifar10-small-hardened --protocol strong --images 500 --precision bf16 --out DIR
#
# An attack on one batch leaves most of a large GPU idle. NVIDIA's MPS, where it is installed, lets the processes compute at
# the same time; without it they take turns. The log of part k is DIR-k.log. After a kill the same command goes on.
set -eu
parts=$1
shift
out=""
previous=""
for word in "$@"; do
  if [ "$previous" = --out ]; then out=$word; fi
  previous=$word
done
[ -n "$out" ] || { echo "expected --out DIR, got none" >&2; exit 2; }
if command -v nvidia-cuda-mps-control >/dev/null; then nvidia-cuda-mps-control -d || true; fi
number=1
while [ "$number" -le "$parts" ]; do
  OMP_NUM_THREADS=1 twoprong evaluate "$@" --part "$number/$parts" >"$out-$number.log" 2>&1 &
  number=$((number + 1))
done
wait
exec twoprong evaluate "$@" --resume
