#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "../../cpp/index/postings.h"

namespace everlong::index {
namespace {

// One adds and removes; what others find of the pages that are there is what it was.
TEST(LexicalIndex, SearchesRunBesideTheOneThatAddsAndRemoves) {
  Postings postings;
  constexpr int32_t kPages = 300;
  for (int32_t page = 0; page < kPages; ++page) postings.Add(page, std::vector<int32_t>{1, 1, page % 7 + 10, page % 2});
  std::atomic<bool> done = false;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      while (!done) {
        for (const int32_t id : {1, 12}) {
          const Postings::Found found = postings.Find(std::span(&id, 1));
          std::vector<Posting> seen;
          // Of these only pages of odd numbers are removed.
          found.lists[0].ForEach({0, kPages}, [&](const Posting& posting) {
            if (posting.page % 2 == 0) seen.push_back(posting);
          });
          std::vector<Posting> expected;
          for (int32_t page = 0; page < kPages; page += 2) {
            if (id == 1) expected.push_back({page, 2});
            if (id == 12 && page % 7 == 2) expected.push_back({page, 1});
          }
          EXPECT_EQ(seen, expected);
        }
      }
    });
  }
  for (int32_t page = 0; page < kPages; ++page) {
    postings.Add(kPages + page, std::vector<int32_t>{1, 12, page});
    if (page % 2 == 1) postings.Remove(page, std::vector<int32_t>{1, 1, page % 7 + 10, page % 2});
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
}

// Nothing says where a page was, whatever order pages go in.
TEST(PostingList, WhatWasRemovedIsNowhere) {
  std::mt19937 random(11);
  for (int round = 0; round < 50; ++round) {
    PostingList list;
    std::map<int32_t, int32_t> reference;
    std::vector<int32_t> pages;
    for (int32_t page = static_cast<int32_t>(random() % 3); page < 60; page += 1 + static_cast<int32_t>(random() % 3)) {
      list.Add({page, 1 + page % 5});
      reference[page] = 1 + page % 5;
      pages.push_back(page);
    }
    std::ranges::shuffle(pages, random);
    while (!pages.empty()) {
      list.Remove(pages.back());
      list.Remove(pages.back());  // is not here any more
      reference.erase(pages.back());
      pages.pop_back();
      std::map<int32_t, int32_t> found;
      list.ForEach({0, 60}, [&](const Posting& posting) { found[posting.page] = posting.count; });
      EXPECT_EQ(found, reference);
      EXPECT_EQ(list.live(), std::ssize(reference));
      const auto first = static_cast<int32_t>(random() % 60);
      std::vector<int32_t> in_range;
      list.ForEach({first, first + 9}, [&](const Posting& posting) { in_range.push_back(posting.page); });
      std::vector<int32_t> expected;
      for (const auto& [page, count] : reference) {
        if (page >= first && page < first + 9) expected.push_back(page);
      }
      EXPECT_EQ(in_range, expected);
    }
  }
}

}  // namespace
}  // namespace everlong::index
