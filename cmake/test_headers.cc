// Nothing: the precompiled header of the native tests is what this target is for (HalfstepLibrary.cmake).
