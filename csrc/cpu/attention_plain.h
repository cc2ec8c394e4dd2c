// Attention as its definition says it, one query row at a time.
#pragma once

#include "csrc/ops/params.h"

namespace cudaprefill::cpu {

void prefill_attention_plain(const PrefillAttentionParams& params);
void decode_attention_plain(const DecodeAttentionParams& params);

}  // namespace cudaprefill::cpu
