# SPDX-License-Identifier: Apache-2.0
# bash-completion reads this file when somebody first completes a word of awaken.
eval "$(awaken completion bash)"
