# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""tconv in PyTorch: transposed convolutions fused with what follows them. See README.md in the folder above."""

from .functional import batch_norm_global_mean, conv_transpose, global_mean
from .modules import ConvTranspose3dScaleBatchNormMean, ConvTranspose3dSoftmaxSigmoid

__all__ = [
    "ConvTranspose3dScaleBatchNormMean",
    "ConvTranspose3dSoftmaxSigmoid",
    "batch_norm_global_mean",
    "conv_transpose",
    "global_mean",
]
