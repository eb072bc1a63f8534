"""Train the same model on two backends and show that they agree to the last bit.

Run it with: python examples/quickstart.py
"""

import fedbench


def main() -> None:
    digests = {}
    for backend in ("sequential", "threads"):
        with fedbench.Simulation("digits-logreg", executor=backend, seed=0) as simulation:
            history = simulation.run(rounds=5, evaluate_every=5)
            digests[backend] = simulation.state_digest()
        accuracy = history.last("test", "accuracy")
        print(f"{backend:>10}: accuracy {accuracy:.3f}, digest {digests[backend][:12]}")
    if len(set(digests.values())) != 1:
        raise SystemExit("the backends differ")
    print("the same bits on both")


if __name__ == "__main__":
    main()
