"""One intra-op thread, as in client tasks, so that the plain loops have the same bits."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_intraop_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
