#!/bin/sh
# Table 1 of the paper around one WRN-28-10: by the paper's settings, and the authors' way by Algorithm 3 and by their attack.
#     sh tools/table1.sh OUT --scale full --data-root DIR --precision bf16 --images 300 --set classifier.epochs=30
# Without options it runs at smoke scale, to see that it works. What is finished is not made again: start it once more after
# a kill. `sh tools/table1.sh OUT seeds ...` measures mean and deviation over three seeds around a ResNet-18 instead, and
# `sh tools/table1.sh OUT classifier ...` the authors' way around a classifier trained like theirs.
# Estimates for one H200, in seconds, from results/gpu-h200.md: classifier 420; MMA 110 and denoiser 180 per fit, the
# examples shared by both; Algorithm 3 on 300 images 65, the authors' attack 100 (its denoiser is not compiled).
set -eu
out=$1
shift
part=table
case ${1-} in seeds | classifier) part=$1 && shift ;; esac
command=${TWOPRONG:-python -m twoprong}

run() { # NAME of the table, ROW, further options: into a folder of its own
    folder=$out/$1-$(echo "$2" | tr -cs 'A-Za-z0-9\n' '-')
    name=$1 row=$2
    shift 2
    $command reproduce "$name" --only "$row" --work "$out/work" --out "$folder" --resume "$@"
}

case $part in
seeds)
    run table1-linf "DAD, WRN-28-10" --preset paper --seeds 3 --classifier "${CLASSIFIER:-resnet18}" "$@"
    ;;
classifier)
    run table1-linf "DAD the authors' way, their classifier, by their attack" "$@"
    ;;
table)
    run table1-linf "DAD, WRN-28-10" --preset paper "$@" # 420 + 110 + 180 + 65, and about 60 for compiling
    weights=$(ls "$out"/table1-linf-DAD-WRN-28-10/bundles/*/classifier.safetensors)
    run table1-l2 "DAD, WRN-28-10" --preset paper --weights "$weights" "$@" # 65
    run table1-linf "DAD the authors' way, WRN-28-10" --weights "$weights" "$@" # 60 for their extractor, 250, 65
    run table1-linf "DAD the authors' way, by their attack" --weights "$weights" "$@" # 100
    run table1-l2 "DAD the authors' way, WRN-28-10" --weights "$weights" "$@" # 65
    run table1-l2 "DAD the authors' way, by their attack" --weights "$weights" "$@" # 100
    ;;
esac
