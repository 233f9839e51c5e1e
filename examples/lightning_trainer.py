"""POGM in a Lightning project: only the class `DomainClassifier` and the dictionary of DataLoaders are new.

The domains are digits, rotated by 0°, 15° and 30°. The validation data are rotated by 45°, which the network has not
seen. Run it with ``pip install 'pogm[lightning]'``.
"""

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import rotate

from pogm import POGM, Learner
from pogm.integrations.lightning import DomainTraining


class Classifier(LightningModule):
    """The project as it was, with its own training."""

    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self.network(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_acc", (self.network(x).argmax(-1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class DomainClassifier(DomainTraining, Classifier):
    """The project with POGM: a Learner replaces training_step and configure_optimizers."""

    def configure_learner(self):
        return Learner(self.network, POGM(), optimizer="adamw", lr=1e-3)


def rotated_digits(angle):
    """Return the digits of scikit-learn (8×8 pixels), rotated by an angle in degrees."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    return TensorDataset(rotate(images, angle, InterpolationMode.BILINEAR), torch.tensor(digits.target))


if __name__ == "__main__":
    seed_everything(0)
    domains = {f"{angle}°": DataLoader(rotated_digits(angle), 128, shuffle=True) for angle in (0, 15, 30)}
    trainer = Trainer(max_epochs=4, accelerator="auto", devices=1)
    trainer.fit(DomainClassifier(), domains, DataLoader(rotated_digits(45), 128))
    print(f"accuracy on digits rotated by 45°: {trainer.callback_metrics['val_acc']:.2f}")
