// hnswlib's addPoint holds the new element's lock while it takes those of its neighbours, one by one. Neighbours are
// chosen before the element is linked, so each waits only for elements that could be found before it, and no circle can
// close; ThreadSanitizer's detector of lock orders sees two orders and cannot know. Its detector of races stays on.
#ifdef __SANITIZE_THREAD__
extern "C" const char* __tsan_default_options() { return "detect_deadlocks=0"; }
#endif
