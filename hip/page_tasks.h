// How pages and blocks of rows are spread over blocks of threads. Each takes a group of pages for one block of rows.
// The block of rows changes fastest, so that blocks of threads that read the same pages run together.
#pragma once

#include <cstdint>

#include "divisor.h"

namespace everlong::hip {

EVERLONG_HD inline int64_t PageTasks(int64_t page_count, int64_t blocks, int32_t pages_a_group) {
  return (page_count + pages_a_group - 1) / pages_a_group * blocks;
}

struct PageTask {
  int64_t block;  // of rows
  int64_t first_page;
  int64_t end_page;
};
// `by_blocks` divides by `blocks`.
EVERLONG_HD inline PageTask PageTaskAt(int64_t page_count, int64_t blocks, const Divisor& by_blocks, int64_t task,
                                       int32_t pages_a_group) {
  const int64_t group = by_blocks.Quotient(task);
  const int64_t first = group * pages_a_group;
  const int64_t end = first + pages_a_group;
  return {task - group * blocks, first, end < page_count ? end : page_count};
}

}  // namespace everlong::hip
