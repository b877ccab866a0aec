#!/usr/bin/env bash
# Makes checkpoints/results/ and checkpoints/released/ again, from nothing, in about two and a half hours on two cores:
#     bash checkpoints/reproduce.sh
# What is there already is not made again: to make all of it, move checkpoints/released and checkpoints/runs away first.
set -euo pipefail
cd "$(dirname "$0")/.."
runs=checkpoints/runs released=checkpoints/released results=checkpoints/results
mkdir -p $results

release() {     # checkpoint, folder, options: in float16
    [ -e "$2/config.json" ] || python -m minimoe.release "$@"
}
best() {        # run: the step that solved most dev tasks, the later of equals
    python -c "import json; dev = json.load(open('$1/last/run.json'))['dev']
print(f'{max((sum(solved.values()), int(step)) for step, solved in dev.items() if int(step))[1]:04}')"
}
evaluate() {    # name, checkpoints: greedy, on the tasks that nothing was chosen by
    python -m minimoe.evaluate "${@:2}" --split confirm --samples 0 --json $results/$1.json
}

# Pretraining, three seeds. RL begins at the step that solved nearest to half of the 64 dev tasks: 31, 34 and 30.
steps=(400 110 110) start=(0085 0070 0080)
saves=(60,70,75,80,82,84,85,86,88,90,100,142,180,200,300,400 70,75,80,82,84,85,86,88,90,92,95,98,100,105,110)
saves+=(${saves[1]})
for p in 0 1 2; do
    [ -e $runs/pretrain-$p/step-${start[p]} ] || python -m minimoe.pretrain --seed $p --steps ${steps[p]} --save-at ${saves[p]} \
        --out $runs/pretrain-$p
done
base=($released/pretrain-0085 $runs/released/pretrain-1 $runs/released/pretrain-2)
for p in 0 1 2; do release $runs/pretrain-$p/step-${start[p]} ${base[p]}; done
[ -e $runs/released/pretrain-0085 ] || cp -r ${base[0]} $runs/released/

# From each, three seeds each of RL alone, replay alone, and both, which is what minimoe.rloo does unless told otherwise.
for p in 0 1 2; do
    for seed in 0 1 2; do
        for recipe in "rl --replay 0" "replay --policy 0" "both"; do
            set -- $recipe
            name=$1-$p-$seed
            [ -e $runs/$name/step-0096 ] || python -m minimoe.rloo --base ${base[p]} --seed $seed --out $runs/$name "${@:2}"
            release $runs/$name/step-$(best $runs/$name) $runs/released/$name --base $runs/released/$(basename ${base[p]})
        done
    done
done
release $runs/both-0-0/step-$(best $runs/both-0-0) $released/rloo --base ${base[0]}

for p in 0 1 2; do
    evaluate before-$p ${base[p]}
    for name in rl replay both; do
        evaluate $name-$p $runs/released/$name-$p-{0,1,2}
    done
done
# More pretraining instead: 57 steps take the seconds of an RL run, 95 steps make its updates.
evaluate more-seconds $runs/pretrain-0/step-0142
evaluate more-updates $runs/pretrain-0/step-0180
python checkpoints/table.py

# The figure of README.md
figure=$(mktemp -d)
cp $results/before-0.json $figure/before.json
cp $results/both-0.json "$figure/after RL with replay.json"
python -m minimoe.plot $figure/before.json "$figure/after RL with replay.json" --out $results --format svg
