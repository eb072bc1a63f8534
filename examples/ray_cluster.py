"""A simulation on a Ray cluster: your own one, or a small one that this program starts.

Run it with: python examples/ray_cluster.py [--address first-node:6379] [--workers 2]
"""

import argparse

import fedbench


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", help="host:port of a running cluster; starts one if left out")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()

    # A worker or a node may be lost: run its tasks again, with the same bits.
    with fedbench.make_executor(
        "ray", workers=arguments.workers, address=arguments.address, retries=1
    ) as executor:
        print(f"workers ready after {executor.startup_s:.1f} s")
        simulation = fedbench.Simulation("digits-logreg", executor=executor, seed=0)
        history = simulation.run(rounds=arguments.rounds)
        digest = simulation.state_digest()

    with fedbench.Simulation("digits-logreg", seed=0) as reference:
        reference.run(rounds=arguments.rounds)
        same = reference.state_digest() == digest
    print(f"accuracy {history.last('test', 'accuracy'):.3f}")
    if not same:
        raise SystemExit("the bits differ: are PyTorch and the processors the same on all nodes?")
    print("the same bits as on this machine")


if __name__ == "__main__":
    main()
