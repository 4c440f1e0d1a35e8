# SPDX-License-Identifier: Apache-2.0
# fish reads this file when somebody first completes a word of awaken.
awaken completion fish | source
