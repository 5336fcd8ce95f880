// One scan of HeadsIndex::Scored on a device, with pointers into its memory. For host C++, hipcc and nvcc.
#pragma once

#include <cstdint>

#include "everlong/index/key_layout.h"

namespace everlong::index {

// A page to score.
struct HeadsPage {
  const uint32_t* words;  // of its first key head (key_layout.h)
  int32_t tokens;
  int32_t first_token;  // 0 to tokens - 1: tokens before it are not scored
};

// A page's part of a row's softmax: the sum of 2^(score - largest) over its tokens, and its largest score. It has no
// initialisers because threads share arrays of it.
struct PageShare {
  float largest;
  float sum;
};

// What turns a row's shares into masses: the row's largest score, and its weight over the sum of 2^(score - largest).
struct RowFactor {
  float largest;
  float factor;
};

// Rows come in blocks of kBlockRows that share a key head. Scores are in powers of two: queries were multiplied by
// log2(e) / sqrt(D) and rounded to bf16. Every score is below a quarter of the largest float.
struct HeadsJob {
  KeyLayout layout;
  const HeadsPage* pages = nullptr;  // [page_count]
  int64_t page_count = 0;
  int64_t blocks = 0;
  const float* queries = nullptr;      // [blocks][2 * PairsOf(D)][kBlockRows], at an address divisible by 16
  const int32_t* key_heads = nullptr;  // [blocks]
  const float* weights = nullptr;      // [blocks][kBlockRows], >= 0; 0 for a row of padding
  PageShare* shares = nullptr;         // workspace [blocks][kBlockRows][page_count]
  RowFactor* factors = nullptr;        // workspace [blocks][kBlockRows]
  float* mass = nullptr;               // output [page_count]: the sum over rows of weight * softmax mass
};

}  // namespace everlong::index
