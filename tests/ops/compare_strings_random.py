"""Compares ops on random numbers, strings, tables, sparse tensors and variables with TensorFlow.

    python compare_strings_random.py [--program target/release/placewright] [--seed 0]
                                     [--calls 20] [--verbose] [FAMILY ..]

Needs TensorFlow 2.21. Each op gets random attributes, types and shapes. Prints each difference, and
per op the numbers of agreements and differences. Exit status 1 if there is a difference.
"""

import argparse
import importlib
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import numpy as np

FAMILIES = ["random", "strings", "tables", "sparse", "variables"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = HERE.parents[1] / "target/release/placewright"
    parser.add_argument("--program", default=str(default))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--op", help="only this op")
    parser.add_argument("--verbose", action="store_true", help="print the errors of refusals")
    parser.add_argument("families", nargs="*", metavar="FAMILY", default=FAMILIES)
    args = parser.parse_args()

    import harness

    failed = False
    for family in args.families:
        cases = importlib.import_module(f"cases_{family}").cases
        rng = np.random.default_rng(args.seed)
        made = list(cases(rng, args.calls))
        if args.op:
            made = [case for case in made if case.op == args.op]
        score = harness.compare(args.program, made, verbose=args.verbose)
        for op, (same, different) in score.items():
            failed |= different > 0
            print(f"{family}: {op}: {same} agree, {different} differ")
    sys.exit(failed)


if __name__ == "__main__":
    main()
